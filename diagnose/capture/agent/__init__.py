"""The code that runs in the recorded process: it finds steps, times some, records some, and reports what it knows.

It imports only the standard library and torch, and torch never before the script itself does: the process may have
neither `diagnose` nor its dependencies. It raises nothing into the script but the SystemExit that ends the run.
"""
