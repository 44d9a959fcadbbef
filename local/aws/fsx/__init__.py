"""FSx for Lustre: file systems, and their links to S3.

moto's FSx keeps the request as it came: no state, no checks, no network interfaces, no links. This one takes its place
in the server (`responses.install`) and keeps its own state (`store`). The local machines ask `mounts` before a pod gets
a file system.
"""
