-- Changes fields of a session, logs and publishes `session.updated`.
-- KEYS m log msg tree ids runs q share
-- ARGV 1 pub 2 live 3 uid ('' = no check) 4 if_revision or '' 5 call_id 6 event, a JSON object without type and
--      revision 7 head or '' 8 log_entries 9 log_ms 10 idle_ms 11.. field pairs
-- ok | conflict revision | not_found | message_not_found
local m = redis.call('HMGET', KEYS[1], 'uid', 'epoch', 'revision', 'calls', 'active_response_id')
if not m[1] or (ARGV[3] ~= '' and m[1] ~= ARGV[3]) then return {'not_found'} end
if is_among(m[4], ARGV[5]) then return {'ok'} end -- applied before, the reply was lost
if ARGV[4] ~= '' and m[3] ~= ARGV[4] then return {'conflict', tonumber(m[3])} end
if ARGV[7] ~= '' and redis.call('HEXISTS', KEYS[3], ARGV[7]) == 0 then return {'message_not_found'} end
redis.call('HSET', KEYS[1], 'updated_at', now_ms(), 'calls', with_call(m[4], ARGV[5]), unpack(ARGV, 11))
local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
local event = '{"type":"session.updated","revision":' .. revision .. ',' .. string.sub(ARGV[6], 2)
local offset = log_event(KEYS[1], KEYS[2], event, ARGV[8], ARGV[9])
redis.call('HSET', KEYS[1], 'revision_offset', offset)
if m[5] == '' then let_go(ARGV[10], {KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]}) end
publish_session(m[2], offset, event)
return {'ok'}
