"""FSx for Lustre: file systems, and their links to S3.

moto's FSx stores the request unchanged: no state, no checks, no network interfaces, no links. This package replaces it
in the server (`responses.install`) and keeps its own state (`store`). The local nodes ask `mounts` before a pod gets a
file system.
"""
