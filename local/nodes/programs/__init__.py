"""Small network tools for the debug pod, if this machine has none. They use the standard library only.

They support the common options for troubleshooting, and refuse the others.
"""
