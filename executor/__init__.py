"""Touches hardware: measurements, training engine, dry run, launchers, framework configs.

Its rooms:

    cli         the commands `execute` and `profile`
    launch      starting, watching and reporting a run of a plan
    engine      the native training engine
    dryrun      the same engine on fake tensors
    onerank     the same engine, one rank for real
    profile     measures the machine
    frameworks  other frameworks' configurations, out of a plan and back
    trace       models that no family describes, read off their modules
"""
