"""botpool's nouns as frozen values, each as the database had it when it was read."""
