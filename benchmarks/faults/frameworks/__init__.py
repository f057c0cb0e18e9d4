"""The yardstick for where people really train: ways of training, sound twins among them, porting mistakes in them."""
