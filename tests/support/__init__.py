"""What tests share. Nothing here is imported by services/."""
