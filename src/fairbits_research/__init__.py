"""The claims of the research notes, the experiments on them, and their theory; nothing else imports it."""
