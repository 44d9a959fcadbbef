"""Trainyard: a cluster for distributed PyTorch training, and the run that trains on it."""

import signal

import pulumi

from infra import settings
from infra.stack import deploy

# The engine interrupts the program when a resource has failed: that one is to be seen, not where the program waited.
signal.signal(signal.SIGINT, signal.SIG_DFL)

try:
    configuration = settings.load(pulumi.get_stack())
except settings.SettingsError as error:
    # Nothing is registered yet; the message is all there is to see.
    raise pulumi.RunError(str(error)) from None

for name, value in deploy(configuration).items():
    pulumi.export(name, value)
