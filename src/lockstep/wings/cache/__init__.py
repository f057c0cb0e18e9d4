"""A cache of samples that several trainings on one machine share."""
