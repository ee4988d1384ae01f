from .dataset_run import generate as generate
