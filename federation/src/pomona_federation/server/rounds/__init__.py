"""The rounds of a study: greetings, tasks, answers and their verification."""
