"""The rounds of a study: greeting, tasks, answers and their verification."""
