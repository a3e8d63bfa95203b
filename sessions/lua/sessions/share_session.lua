-- Stores the snapshot that a session's share link shows, under the id that it has or under a new one.
-- KEYS m msg tree ids runs q share
-- ARGV 1 uid 2 new share id 3 title 4 shared_at 5 snapshot 6 idle_ms
-- ok share_id | not_found
local m = redis.call('HMGET', KEYS[1], 'uid', 'active_response_id')
if not m[1] or m[1] ~= ARGV[1] then return {'not_found'} end
local id = redis.call('HGET', KEYS[7], 'id') or ARGV[2]
redis.call('HSET', KEYS[7], 'id', id, 'title', ARGV[3], 'shared_at', ARGV[4], 'snapshot', ARGV[5])
if m[2] == '' then let_go(ARGV[6], KEYS) end
return {'ok', id}
