"""What all commands share: reaching a broker, output, errors, numbers and times."""
