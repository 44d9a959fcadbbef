"""Trainyard: a cluster for distributed PyTorch training, and the run that trains on it."""

import pulumi

from infra import settings
from infra.stack import deploy

try:
    configuration = settings.load(pulumi.get_stack())
except settings.SettingsError as error:
    # Nothing is registered yet; the message is all there is to see.
    raise pulumi.RunError(str(error)) from None

for name, value in deploy(configuration).items():
    pulumi.export(name, value)
