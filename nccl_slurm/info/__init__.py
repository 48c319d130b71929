"""What log lines tell beside the failure: paths, versions and settings, inits that stopped midway, timeouts.

All of it is printed by the job: hints about settings, never proof about a machine. Pure; imports the model alone.
"""
