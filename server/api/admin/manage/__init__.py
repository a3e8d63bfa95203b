"""What admins manage beside users and answers: groups, notices, share links, how a worker runs."""
