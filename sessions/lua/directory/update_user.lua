-- Changes fields of a user that exists; one that was deleted is not re-created.
-- KEYS u:{uid}:p
-- ARGV field pairs
-- ok | not_found
if redis.call('EXISTS', KEYS[1]) == 0 then return {'not_found'} end
if #ARGV > 0 then redis.call('HSET', KEYS[1], unpack(ARGV)) end
return {'ok'}
