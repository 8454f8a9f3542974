"""`zlaunch doctor`: examine this machine and others before a job starts there.

A light program gathers facts on each host (`host`); everything is judged here, by pure functions of the
facts (`checks`, `between`).
"""
