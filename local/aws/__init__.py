"""The AWS API of the local cloud: a moto server with what moto lacks.

`python -m local.aws --home DIR --port P` serves it. One idea per module; what a module changes in moto it changes in
its `install()`, with the reason beside it. `local.aws.patches.install()` calls them all, once per process.
"""
