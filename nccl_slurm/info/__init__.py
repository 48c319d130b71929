"""What log lines tell beside the verdict: paths, versions and settings, inits that stopped midway, timeouts.

All of it is printed by the job: hints about settings, never proof about a machine. Pure; imports the model alone.
"""
