"""Recording a run: the command that starts it, and the agent inside it that finds steps and records some of them."""
