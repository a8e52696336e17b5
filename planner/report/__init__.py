"""What people see: tables, pages, pictures."""
