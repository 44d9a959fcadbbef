"""Small network tools for the debug pod, for machines that have none: programs of the standard library alone.

They know the options that people type when they look for a fault, and refuse the others.
"""
