"""First plans under the closed form."""
