-- A session is used: its idle life begins anew.
-- KEYS m msg tree ids runs q share
-- ok
read_args({'idle_ms'})
if redis.call('HGET', KEYS[1], 'active_response_id') == '' then let_go(args.idle_ms, KEYS) end
return {'ok'}
