-- Sets the cancel flag of a live run: from now on it can only end `cancelled`. The first caller's words stay. PERSIST
-- changes nothing (a live run has no expiry); after it the script may go on when memory is full. KEYS r ARGV 1 uid (''
-- = no check) 2 by 3 reason 4 seen or '' ok owner fence lease_until status first cancel_at | ended status reason
-- sequence_number engine text_length fence | not_found
local r = redis.call('HMGET', KEYS[1], 'uid', 'status', 'owner', 'fence', 'lease_until', 'cancel', 'reason',
  'sequence_number', 'engine', 'text_length', 'cancel_at')
if not r[1] or (ARGV[1] ~= '' and r[1] ~= ARGV[1]) then return {'not_found'} end
if not is_live(r[2]) then
  return {'ended', r[2], r[7], tonumber(r[8]), r[9], tonumber(r[10]), tonumber(r[4])}
end
local first = r[6] == '0'
local cancel_at = first and now_ms() or tonumber(r[11])
if first then
  redis.call('PERSIST', KEYS[1])
  redis.call('HSET', KEYS[1], 'cancel', 1, 'cancel_by', ARGV[2], 'cancel_reason', ARGV[3],
    'seen_sequence_number', ARGV[4], 'cancel_at', cancel_at)
end
return {'ok', r[3], tonumber(r[4]), tonumber(r[5]), r[2], first and 1 or 0, cancel_at}
