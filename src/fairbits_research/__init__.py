"""The claims of the founding documents, the experiments on them, and their theory; nothing else imports it."""
