"""Trainyard: a cluster for distributed PyTorch training, and the run that trains on it."""

# ruff: noqa: E402
import gc

# The modules of the SDK make hundreds of thousands of objects that stay to the end. By default, Python's collector
# looks at them after each 700 new ones, which takes a fifth of the program's processor time.
gc.set_threshold(50_000, 20, 20)

import signal

import pulumi

from infra import settings
from infra.stack import deploy

# The engine interrupts the program when a resource has failed: users must see that one, not where the program waited.
signal.signal(signal.SIGINT, signal.SIG_DFL)

# The SDK sends several debug messages for each resource, each in a blocking call. The engine shows none of them without
# its option --debug.
pulumi.log.debug = lambda *_args, **_options: None

try:
    configuration = settings.load(pulumi.get_stack())
except (settings.SettingsError, settings.SettingsNotPassedError) as error:
    # Nothing is registered yet; the message is all there is to see.
    raise pulumi.RunError(str(error)) from None

for name, value in deploy(configuration).items():
    pulumi.export(name, value)
