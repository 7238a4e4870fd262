-- Keeps leases. KEYS: leases. ARGV: prefix, until, milliseconds until the server forgets them, token of each.
-- Answers for each: 0 kept, 1 somebody asks for an interrupt, -1 lost.
local found = {}
for n, lease in ipairs(KEYS) do
    local token, interrupted = unpack(redis.call('HMGET', lease, 'token', 'interrupted'))
    if token == ARGV[n + 3] then
        redis.call('HSET', lease, 'expires', ARGV[2])
        redis.call('PEXPIRE', lease, ARGV[3])
        found[n] = interrupted and 1 or 0
    else
        found[n] = -1
    end
end
return found
