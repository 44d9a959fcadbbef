"""The AWS API of the local cloud: a moto server, extended with what moto lacks.

`python -m local.aws --home DIR --port P` serves it. Each module has one purpose. Its `install()` makes its changes to
moto, and comments there give the reasons. `local.aws.patches.install()` calls all of them, once per process.
"""
