"""The workbench of outlines_phi: verification of masks, inspection of machines, and the fidelity suite, with their commands."""
