"""What several hosts of one deployment need from each other, judged from their facts."""
