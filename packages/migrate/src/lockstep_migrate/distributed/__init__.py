"""From one card to many: torchrun starts one process a device, and each trains on its share of the samples."""
