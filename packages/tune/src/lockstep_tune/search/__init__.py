"""Search of settings for a training: Optuna proposes, Lockstep runs, watches and compares."""
