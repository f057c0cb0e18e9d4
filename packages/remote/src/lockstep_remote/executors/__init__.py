"""Run a verb as a job: what `--on` may name, how a job is followed, and the job systems that Lockstep knows."""
