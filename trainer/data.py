"""The images, by the names that the loop in train.py knows; their home is `trainer.workloads.images`."""

from trainer.workloads.images import CLASSES as CLASSES
from trainer.workloads.images import Dataset as Dataset
from trainer.workloads.images import Images as Images
from trainer.workloads.images import load as load
