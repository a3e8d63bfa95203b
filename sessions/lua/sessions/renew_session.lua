-- A session is used: its idle life begins anew.
-- KEYS m msg tree ids runs q share
-- ARGV 1 idle_ms
-- ok
if redis.call('HGET', KEYS[1], 'active_response_id') == '' then let_go(ARGV[1], KEYS) end
return {'ok'}
