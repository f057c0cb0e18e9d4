"""Draw findings as text, tables and pages; opens no tensor."""
