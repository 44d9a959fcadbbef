"""Trainyard: a cluster for distributed PyTorch training, and the run that trains on it."""

import gc
import signal

import pulumi

from infra import settings
from infra.stack import deploy

# The engine interrupts the program when a resource has failed: users must see that one, not where the program waited.
signal.signal(signal.SIGINT, signal.SIG_DFL)

# The SDK makes tens of thousands of objects that stay to the end. Python's collector looks at them after each 700 new
# ones by default, which takes a fifth of the program's processor time.
gc.set_threshold(50_000, 20, 20)

try:
    configuration = settings.load(pulumi.get_stack())
except (settings.SettingsError, settings.SettingsNotPassedError) as error:
    # Nothing is registered yet; the message is all there is to see.
    raise pulumi.RunError(str(error)) from None

for name, value in deploy(configuration).items():
    pulumi.export(name, value)
