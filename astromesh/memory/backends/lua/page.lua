-- Turns after a seq, oldest first. KEYS: session, turns. ARGV: after, limit, now.
local owner, ends = unpack(redis.call('HMGET', KEYS[1], 'owner', 'expires'))
if not owner or over(ends, ARGV[3]) or tonumber(ARGV[2]) < 1 then
    return {}
end
return redis.call('LRANGE', KEYS[2], ARGV[1], ARGV[1] + ARGV[2] - 1)
