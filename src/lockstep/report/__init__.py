"""Drawing what was found; opens no tensor."""
