-- Tells that scripts may be run.
-- KEYS any key of ours
-- ok
read_args({})
return {'ok'}
