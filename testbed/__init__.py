"""What tests and measurements stand on: real container engines, and databases full of rows."""
