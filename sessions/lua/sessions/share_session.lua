-- Stores the snapshot that a session's share link shows, under the id that it has or under a new one.
-- KEYS m msg tree ids runs q share
-- ok share_id | not_found
read_args({'uid', 'new_id', 'title', 'shared_at', 'snapshot', 'idle_ms'})
local m, msg, tree, ids, runs, q, share = unpack(KEYS)
local uid, active = unpack(redis.call('HMGET', m, 'uid', 'active_response_id'))
if not uid or uid ~= args.uid then return {'not_found'} end
local id = redis.call('HGET', share, 'id') or args.new_id
redis.call('HSET', share, 'id', id, 'title', args.title, 'shared_at', args.shared_at, 'snapshot', args.snapshot)
if active == '' then let_go(args.idle_ms, {m, msg, tree, ids, runs, q, share}) end
return {'ok', id}
