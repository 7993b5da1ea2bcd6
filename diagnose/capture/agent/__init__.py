"""What works inside the recorded process: finds its steps, times some, records some, and says what it knows.

Only the standard library and torch, and torch never before the script itself imports it: the process may have neither
`diagnose` nor what it needs. Nothing in here may raise into the script.
"""
