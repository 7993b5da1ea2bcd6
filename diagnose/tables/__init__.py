"""Tables for other programs: what each holds, in which columns, and how it is made of facts."""
