from ..cli.ray.dataset_run import generate as generate
