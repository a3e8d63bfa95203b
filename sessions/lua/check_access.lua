-- Tells that scripts may be run.
-- KEYS any key of ours
return {'ok'}
