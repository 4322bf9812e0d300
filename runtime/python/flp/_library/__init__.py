"""libflp without torch: its structs and functions, plans, loss programs, and checks of numbers."""
